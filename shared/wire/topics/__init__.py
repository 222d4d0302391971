"""Messages that belong together, of which only some processes speak: results, graphs, culprits."""
