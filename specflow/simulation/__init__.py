"""What a drafter would bring at another load: rounds seen before, replayed at the cost of a measured engine."""
