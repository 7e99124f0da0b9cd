"""A run's simulated time and cost on a fleet, by policy, before anything is rented."""
