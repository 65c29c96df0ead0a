"""`spec-fsm demo`: the main job on a real server, and a report of what it did.

`workload` says which requests arrive when, `server` starts SGLang, `load` sends the requests,
`compare` holds their outputs against a server without speculation, `timeline` reads the trace,
`report` writes `demo-report/`, and `run` does all of it and judges.
"""
