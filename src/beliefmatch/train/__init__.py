"""Training: loops that know an objective and a network, and nothing of the method behind them."""
