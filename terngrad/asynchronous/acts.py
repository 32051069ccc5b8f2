"""The calls of a worker to a ps: the numbers of `Act` in service.proto."""

MORE, ENTER, BEGIN, STATE, PUSH, PULL, FETCH, BYE = range(8)
