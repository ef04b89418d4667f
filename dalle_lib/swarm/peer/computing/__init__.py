"""How one peer computes a gradient: precision, layers, samples at a time, what fits. Nothing here needs hivemind."""
