"""Faults on live runs: schedules, the processes they meet, and doing them."""
