"""What late updates cost and gain: convergence, and predictions beside trials."""
