"""The calls of a worker to a ps: what `Call.act` says (terngrad/service/declarations.py).

MORE: more content of the previous call.
ENTER: the first call of a channel; content: JSON.
BEGIN: from worker 0; content: JSON, a plan (terngrad/asynchronous/plan.py).
STATE: from worker 0, after BEGIN; content: the initial state.
PUSH: content: a gradient; the reply is as for PULL.
PULL: the reply has the parameters.
FETCH: the reply has the whole state.
BYE: the worker ends.
"""

MORE, ENTER, BEGIN, STATE, PUSH, PULL, FETCH, BYE = range(8)
