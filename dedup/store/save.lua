-- Write what changed since the write before.
--
-- KEYS[1]  hash, the state of one guarded queue (fields: see claim.lua and encoding.py)
-- ARGV[1]  decimal, the writer's token
-- ARGV[2]  decimal, the revision the writer expects to find
-- ARGV[3]  decimal, the revision it leaves
-- ARGV[4]  how many fields are deleted
-- ARGV[5]  their names, then the fields to set and their values in turn: the length of each, by spaces
-- ARGV[6]  all of them in one piece
--
-- Reply    'saved'    written, now or when this very write was sent before
--          'behind'   nothing changed: Redis has lost writes, the writer must replace everything
--          'fenced'   nothing changed: another relay has a higher token
--
-- Idempotent: it sets, it never adds.

local stored = tonumber(redis.call('HGET', KEYS[1], 'token') or '0')
local token = tonumber(ARGV[1])
if stored > token then return 'fenced' end
if stored < token then return 'behind' end
-- Another process may have lost what this one was told, even if the numbers still fit.
if redis.call('HGET', KEYS[1], 'process') ~= string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') then
    return 'behind'
end
local revision = redis.call('HGET', KEYS[1], 'revision')
if revision == ARGV[3] then return 'saved' end
if revision ~= ARGV[2] then return 'behind' end

local deleted, index, parts, count, at = tonumber(ARGV[4]), 0, {}, 0, 1
local command = deleted > 0 and 'HDEL' or 'HSET'
for length in string.gmatch(ARGV[5], '%d+') do
    index, count = index + 1, count + 1
    parts[count] = string.sub(ARGV[6], at, at + length - 1)
    at = at + length
    -- A call costs more than a field; Lua's stack bounds how many one may take, and an even number keeps pairs together.
    if index == deleted or count == 2000 then
        redis.call(command, KEYS[1], unpack(parts, 1, count))
        count = 0
        if index >= deleted then command = 'HSET' end
    end
end
if count > 0 then redis.call(command, KEYS[1], unpack(parts, 1, count)) end
redis.call('HSET', KEYS[1], 'revision', ARGV[3])
return 'saved'
