"""Messages grouped by topic, which only some processes use: results, graphs, culprits."""
