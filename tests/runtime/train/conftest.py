"""In: nothing. Out: `import rank_entries` works in the tests of this folder, and in the processes they launch."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
