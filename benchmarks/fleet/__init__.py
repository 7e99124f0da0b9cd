"""What disturbs a fleet: faults, losses, restarts, and whether anything is lost or changed by them."""
