"""Built samples on local disk, so that later epochs need not decode and transform them again."""
