"""Code shared by loaders and trainers: the protocol (see PROTOCOL.md), settings and errors."""

#: Lets the other packages recognise this package: a user's folder named `shared` may shadow it on the import path.
DISTRIBUTION = "stoker"
