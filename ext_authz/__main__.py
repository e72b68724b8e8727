"""`python -m ext_authz`."""

from ext_authz.cli import main

raise SystemExit(main())
