"""What a run takes: its orchestration beside bare compute, and simulated runs beside live ones."""
