"""What a run would take and cost on a fleet, by policy, before anything is rented: simulated figures."""
