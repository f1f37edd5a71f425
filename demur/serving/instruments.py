"""What Prometheus reads at /metrics; nothing in it tells what was asked, only how often and what was answered."""

from collections import Counter as Tally
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from demur.serving.answers import Answer

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
INPUTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# most scores lie between 0 and 1, energies and distances anywhere
SCORES = (-50, -20, -10, -5, -2, -1, 0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99, 1, 2, 10, 50)


class Instruments:
    """The counters of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own = self.registry
        self._requests = Counter("demur_requests", "Requests answered", ["model", "status"], registry=own)
        self._seconds = Histogram(
            "demur_request_seconds", "From a request to its answer", buckets=SECONDS, registry=own
        )
        self._batches = Histogram("demur_batch_inputs", "Inputs of a batch", ["model"], buckets=INPUTS, registry=own)
        self._work = Histogram("demur_batch_seconds", "Work on a batch", ["model"], buckets=SECONDS, registry=own)
        self._decisions = Counter("demur_decisions", "Inputs by decision", ["model", "decision"], registry=own)
        self._scores = Histogram("demur_outlier_score", "Outlier scores", ["model"], buckets=SCORES, registry=own)
        self._failures = Counter(
            "demur_reload_failures", "Model files that could not be loaded", ["model"], registry=own
        )
        self._waiting = Gauge("demur_queue_inputs", "Inputs that wait", ["model"], registry=own)
        self._evidence = Gauge(
            "demur_monitor_evidence", "Evidence of a shift; 1 / level is an alarm", ["model"], registry=own
        )
        self._alarm = Gauge("demur_monitor_alarm", "1 once the monitor has raised an alarm", ["model"], registry=own)

    def request(self, model: str, status: int, seconds: float) -> None:
        self._requests.labels(model, str(status)).inc()
        self._seconds.observe(seconds)

    def batch(self, model: str, answers: Sequence[Answer], seconds: float) -> None:
        self._batches.labels(model).observe(len(answers))
        self._work.labels(model).observe(seconds)
        for sort, count in Tally(answer.sort for answer in answers).items():
            self._decisions.labels(model, sort).inc(count)
        for answer in answers:
            if answer.outlier_score is not None:
                self._scores.labels(model).observe(answer.outlier_score)

    def reload_failed(self, model: str) -> None:
        self._failures.labels(model).inc()

    def page(self, models: dict[str, tuple[int, float, bool]]) -> bytes:
        """For each model how many inputs wait, and the monitor's evidence and alarm."""
        for name, (waiting, evidence, alarm) in models.items():
            self._waiting.labels(name).set(waiting)
            self._evidence.labels(name).set(evidence)
            self._alarm.labels(name).set(alarm)
        return generate_latest(self.registry)
