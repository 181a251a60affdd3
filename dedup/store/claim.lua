-- Take a queue's state over: raise the fencing token and read everything.
--
-- KEYS[1]  hash, the state of one guarded queue
--          token      decimal, fencing token of the relay that owns the queue
--          revision   decimal, +1 for each write
--          process    run id of the server that replace.lua wrote to
--          (the other fields are written by save.lua and replace.lua: see encoding.py)
-- ARGV[1]  decimal, lowest token to take
--
-- Reply    run id of the server; then the hash with the new token in it, fields and values in turn: the length of each, by
--          spaces, and all of them in one piece (a client takes one long reply much faster than many short ones)
--
-- Not idempotent, and need not be: a claim repeated after a lost reply takes one token more.

local token = tonumber(redis.call('HGET', KEYS[1], 'token') or '0') + 1
local lowest = tonumber(ARGV[1])
if token < lowest then token = lowest end
-- Tokens are milliseconds: far below 2^53, so doubles hold them exactly.
redis.call('HSET', KEYS[1], 'token', string.format('%.0f', token))
local flat, lengths = redis.call('HGETALL', KEYS[1]), {}
for i, part in ipairs(flat) do lengths[i] = #part end
local process = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
return {process, table.concat(lengths, ' '), table.concat(flat)}
