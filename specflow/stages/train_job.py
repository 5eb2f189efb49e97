"""Running the train stage's job: in this process, on several ranks, or by torchrun elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specflow.config.drafter import TrainParams
from specflow.stages.contract import Context, StageError

if TYPE_CHECKING:
    from specflow.training.data import Documents
    from specflow.training.job import Job


def run_job(job: Job, train: TrainParams, context: Context, *, documents: Documents) -> None:
    """Until ``job.result`` is there. Raises ``StageError`` where training fails or has to be started by hand."""
    from specflow.training.guards import TrainingDiverged
    from specflow.training.init_from import CannotStart
    from specflow.training.launch import RankFailed, train_on_ranks
    from specflow.training.optimizers import WrongGroups
    from specflow.training.step import WrongDenominator
    from specflow.training.worker import train_worker

    if train.launcher == "torchrun":
        path = job.write()
        if not job.result.exists():
            raise StageError(
                "train.launcher is torchrun: on every machine run\n"
                f"  torchrun --nnodes NODES --nproc-per-node RANKS --rdzv-backend c10d --rdzv-endpoint HOST:PORT "
                f"-m specflow.training {path}\n"
                "then this stage again, which makes the artifact of what it trained"
            )
        return
    try:
        if train.ranks > 1:
            train_on_ranks(job, context, ranks=train.ranks)
        else:
            train_worker(job, context, documents=documents)
    except WrongGroups as error:
        raise StageError(f"train.groups: {error}") from error
    except CannotStart as error:
        raise StageError(f"train.init_from: {error}") from error
    except (TrainingDiverged, RankFailed, WrongDenominator) as error:
        raise StageError(str(error)) from error
