"""Running programs on simulated devices."""
