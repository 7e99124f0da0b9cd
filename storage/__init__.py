"""Settings of runs and what runs leave behind; free of torch, Ray, Prefect and Streamlit."""

from storage.processes import set_environment

set_environment()
