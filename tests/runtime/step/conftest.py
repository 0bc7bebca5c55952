"""In: nothing. Out: `import naive_eagle3` and `import toy_eagle3` work in the tests of this folder."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
