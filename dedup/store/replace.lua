-- Write the whole state over whatever is there.
--
-- KEYS[1]  hash, the state of one guarded queue (fields: see claim.lua and encoding.py)
-- ARGV[1]  decimal, the writer's token
-- ARGV[2]  decimal, the revision it leaves
-- ARGV[3]  pairs of field and value
--
-- Reply    'saved' or 'fenced', as in save.lua
--
-- Idempotent.

local stored = tonumber(redis.call('HGET', KEYS[1], 'token') or '0')
if stored > tonumber(ARGV[1]) then return 'fenced' end
redis.call('DEL', KEYS[1])
local process = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'revision', ARGV[2], 'process', process)
for i = 3, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
return 'saved'
