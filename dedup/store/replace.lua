-- Write the whole state over whatever is there.
--
-- KEYS[1]  hash, the state of one guarded queue (fields: see claim.lua and encoding.py)
-- ARGV[1]  decimal, the writer's token
-- ARGV[2]  decimal, the revision it leaves
-- ARGV[3]  fields and values in turn: the length of each, by spaces
-- ARGV[4]  all of them in one piece
--
-- Reply    'saved' or 'fenced', as in save.lua
--
-- Idempotent.

local stored = tonumber(redis.call('HGET', KEYS[1], 'token') or '0')
if stored > tonumber(ARGV[1]) then return 'fenced' end
redis.call('DEL', KEYS[1])
local process = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'revision', ARGV[2], 'process', process)
local parts, count, at = {}, 0, 1
for length in string.gmatch(ARGV[3], '%d+') do
    count = count + 1
    parts[count] = string.sub(ARGV[4], at, at + length - 1)
    at = at + length
    -- A call costs more than a field; Lua's stack bounds how many one may take.
    if count == 2000 then
        redis.call('HSET', KEYS[1], unpack(parts, 1, count))
        count = 0
    end
end
if count > 0 then redis.call('HSET', KEYS[1], unpack(parts, 1, count)) end
return 'saved'
