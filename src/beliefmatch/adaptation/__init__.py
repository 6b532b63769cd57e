"""Adaptation: a new last layer for a classifier that is already trained.

The head is found by sending a batch through (`heads`), what it sees of the data is computed once and kept
(`features`, `cache`), every candidate head is fitted in one pass over it (`batched`), and the choice is made
on data that the network has not seen (`choosing`).
"""
