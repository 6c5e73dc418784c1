"""What holds for the whole suite."""

from hypothesis import HealthCheck, settings

# The suite runs beside other work on few cores, so how long an example takes says nothing about it.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
