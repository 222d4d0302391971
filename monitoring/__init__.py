"""What watches a job: Prometheus rules and alerts, a Grafana dashboard, and the runbook for whoever is woken."""
