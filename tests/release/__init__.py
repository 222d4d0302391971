"""What is released: a wheel and an sdist, tried as a user has them."""
