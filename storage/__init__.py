"""What a run is asked for and what it leaves behind; free of torch, Ray, Prefect and Streamlit."""

from storage.processes import set_environment

set_environment()
