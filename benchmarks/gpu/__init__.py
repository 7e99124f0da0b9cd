"""Parts of `benchmarks.gpu_day`: its stages, their processes, and the wheels they need."""
