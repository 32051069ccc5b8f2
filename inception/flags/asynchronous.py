"""What --cross_replica_sync=False cannot honour; checked before TensorFlow is loaded."""

from inception.flags.configs import TrainConfig
from inception.flags.table import refuse


def refuse_what_needs_all_workers(config: TrainConfig) -> None:
    """Raises ValueError if a flag has a value for which all workers must step together."""
    why = "needs --cross_replica_sync=True"
    if config.grad_bits == 1 and not config.use_encoding:
        raise refuse("use_encoding", False, why)
    if config.grad_bits == 1 and not config.scaler_sharing:
        raise refuse("scaler_sharing", False, f"{why}: asynchronous workers share no scales")
    if config.has_float_epochs:
        raise refuse("floating_grad_epoch", config.floating_grad_epoch, why)
    if config.profile_steps:
        raise refuse("profile_steps", ",".join(map(str, config.profile_steps)), why)
