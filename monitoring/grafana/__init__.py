"""The dashboard of a job, as code, and as the JSON that Grafana is given."""
