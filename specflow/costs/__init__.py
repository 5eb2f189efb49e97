"""What a target pass costs, by requests and rows: measured, fitted, checked, and written as serving engines read it."""
