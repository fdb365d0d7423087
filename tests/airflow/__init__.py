"""The sensors, triggers and pools for Airflow, on the real framework."""
