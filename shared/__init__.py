"""What loaders and trainers have in common: the protocol, settings, errors. See PROTOCOL.md."""

#: How the other packages recognise that they got this package and not a user's folder of the same name.
DISTRIBUTION = "stoker"
