"""What is proved about the whole: a simulation of many workers with faults, a model of the store, planted bugs."""
