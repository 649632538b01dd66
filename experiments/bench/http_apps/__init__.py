"""The identity model as other servers have it; run in an environment of theirs, and by nothing of ours."""
