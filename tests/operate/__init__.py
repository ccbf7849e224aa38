"""What the person on call relies on: doctor, metrics, alerts, availability, deployment, benchmarks."""
