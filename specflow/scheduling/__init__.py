"""How many rows of each request are verified (METHODS 6.3): pure functions, and the lag between rounds."""
