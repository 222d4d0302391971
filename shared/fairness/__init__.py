"""What a server does so that no peer of it takes more than its share."""
