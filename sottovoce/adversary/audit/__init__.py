"""What mechanisms, clients and the shuffler claim, held against what is measured of them."""
