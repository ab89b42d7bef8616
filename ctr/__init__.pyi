from ctr import optim as optim
from ctr.api import compare as compare
from ctr.api import evaluate as evaluate
from ctr.api import export as export
from ctr.api import ingest as ingest
from ctr.api import report as report
from ctr.api import train as train
from ctr.serving.scorer import Scorer as Scorer

__version__: str
