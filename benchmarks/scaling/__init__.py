"""The parts of `benchmarks/scale.py`: a simulated swarm of any size."""
