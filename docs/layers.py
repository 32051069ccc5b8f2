"""The layers of the packages: layers_test.py enforces them, and docs/architecture.svg shows them.

Modules import from their own row and from rows below it.
"""

from collections.abc import Mapping

# From the lowest row to the highest: what each package or module does. A name is that of a module,
# or of a folder, without those of its modules that have a longer name here.
ROWS: tuple[Mapping[str, str], ...] = (
    {"terngrad": "random draws, ternary codes, bit planes, layout"},
    {"terngrad.ops": "the arithmetic in TensorFlow and in C++ (cc)"},
    {"terngrad.gpu": "the native kernels on NVIDIA GPUs"},
    {"terngrad.numpy": "the arithmetic on arrays of NumPy, CuPy and PyTorch"},
    {
        "terngrad.connect": "how processes connect: admission, TLS",
        "terngrad.cluster.addresses": "names and ports of hosts",
        "terngrad.cluster.errors": "errors that name a process of a group",
        "terngrad.cluster.run_secret": "the secret that a launcher's processes share",
    },
    {"terngrad.cluster": "who takes part in a training, and who is alive"},
    {"terngrad.launcher": "starts, watches, restarts and stops processes"},
    {"terngrad.service": "messages between workers and parameter servers"},
    {"terngrad.coordination": "decides which workers make steps together"},
    {"terngrad.exchange": "maximum, exact sum and mean over all nodes"},
    {"terngrad.codecs": "how a gradient is written for the exchange"},
    {"terngrad.training": "step, loop, optimizers, checkpoints, summaries"},
    {"terngrad.asynchronous": "training in which servers hold the parameters"},
    {
        "terngrad.library": "joins a group, reduces gradients, serves",
        "terngrad.keras": "Keras' fit on several machines",
        "terngrad.launch": "starts a program on several machines",
    },
    {"terngrad.spark": "work on the executors of Spark"},
    {"terngrad.testing": "what tests share"},
    {
        "slim.datasets": "data sets and their record files",
        "slim.nets": "nets; one file for each family",
        "slim.pretrained_weights": "pretrained weights of other programs",
    },
    {"slim.preprocessing": "from a stored image to the input of a net"},
    {"slim": "order of images, a worker's share, batches"},
    {
        "slim.conversion": "from pictures to record files",
        "slim.testing": "what tests share",
    },
    {
        "inception.app": "runs a program: flags, errors, exit status",
        "inception.flags": "tables of flags, and the configs they become",
    },
    {"inception.results": "log lines, reports, pictures"},
    {
        "inception.cluster": "from flags to a process of a training",
        "inception.launching": "from scripts' settings to processes on hosts",
    },
    {"inception.training": "prepares, builds, trains, evaluates"},
    {"inception.on_spark": "the programs inside Spark"},
    {"inception.sweeping": "many trainings: trials, places, the best"},
    {"inception": "the programs"},
    {
        "slim.download_and_convert_data": "converts a data set",
        "slim.train_image_classifier": "trains; TF-Slim's flags",
        "slim.eval_image_classifier": "evaluates; the same flags",
    },
    {
        "benchmarks": "one program for each question",
        "docs": "guides, and the programs that draw and write them",
    },
)
ROW_OF = {name: row for row, names in enumerate(ROWS) for name in names}


def root_of(module: str) -> str:
    """The first part of a name; that of slim's programs is inception, whose layers they top."""
    is_program = module.startswith("slim.") and ROW_OF.get(module, 0) > ROW_OF["inception"]
    return "inception" if is_program else module.partition(".")[0]
