"""Adaptation: a new last layer, and with it a belief, for classifiers that are already trained."""
