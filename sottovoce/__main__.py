"""`python -m sottovoce`, where scripts are not on the PATH."""

import sys

from sottovoce.cli.main import main

sys.exit(main())
