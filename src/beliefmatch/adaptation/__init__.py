"""Adaptation: a new last layer for a classifier that is already trained.

The head is found by sending a batch through (`heads`), its inputs are computed once and kept (`features`,
`cache`), heads are fitted to their optimum along paths of weight decay and λ (`solver`, `search`), and one is
chosen on data that the network has not seen (`refit`).
"""
