"""MLflow's run of a logger that nobody closed has ended when the program has."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import run_script

pytestmark = [pytest.mark.extra, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")]

SCRIPT = """
import sys
from wherry.loggers import Event, Logger, MLflowConfig, MLflowLogger, State

def train():
    logger = Logger(State("r"), MLflowLogger("study", config=MLflowConfig(tracking_uri=sys.argv[1])))
    logger.run_event(Event.INIT)
    for step in range(3):
        logger.log_metrics({"loss": 1.0}, step)

train()
if len(sys.argv) > 2:
    raise RuntimeError("boom")
"""


@pytest.mark.parametrize(("arguments", "status"), [((), "FINISHED"), (("fail",), "FAILED")])
def test_the_run_has_ended_and_has_all_figures(tmp_path: Path, arguments: tuple[str, ...], status: str) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    run_script(SCRIPT, uri, *arguments, expected=int(bool(arguments)), timeout_s=120)
    client = MlflowClient(uri)
    (experiment,) = [one for one in client.search_experiments() if one.name == "study"]
    (run,) = client.search_runs([experiment.experiment_id])
    assert status == run.info.status
    assert [0, 1, 2] == [point.step for point in client.get_metric_history(run.info.run_id, "loss")]
