-- Write dead letters down, as many as there is room for.
--
-- KEYS[1]  hash, facts of one schedule
--          process   run id of the server it was last used on
--          doubt     unix ms: what was due until then may have been published already
--          next      number of the newest message
--          bytes     of all messages
-- KEYS[2]  hash, name of a session -> number of its newest batch, a blank, and what was answered to it
-- KEYS[3]  sorted set, due time in unix ms -> number of a message, in 16 digits: what is due together leaves in order
-- KEYS[4]  hash, number of a message -> the message (encoding in schedule.py)
-- KEYS[5]  hash, digest -> how many letters with it were written down and are not forgotten
-- KEYS[6]  sorted set, time in unix s -> digest
-- KEYS[7]  set, numbers of messages that may have been published already
-- KEYS[8]  sorted set, due time -> number: what this session has claimed
-- ARGV[1]  name of the session
-- ARGV[2]  number of the batch
-- ARGV[3]  messages at the most
-- ARGV[4]  bytes at the most
-- ARGV[5]  five for each letter: digest; how many of it this session has; 's' stamped, 'u' unstamped, 'p' past the
--          schedule; delay in ms; message
--
-- Reply    a letter for each that found room: 'n' new, 'd' maybe not, 'k' known (see Kept); 'fenced' when the session is
--          not known
--
-- Idempotent by the number of the batch.

local last = redis.call('HGET', KEYS[2], ARGV[1])
if not last then return 'fenced' end
local number, answer = string.match(last, '^(%d+) ?(%a*)$')
if number == ARGV[2] then return answer end

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local room = tonumber(ARGV[3]) - redis.call('HLEN', KEYS[4])
local bytes = tonumber(redis.call('HGET', KEYS[1], 'bytes') or '0')
-- Somebody may have deleted the messages, or Redis evicted them.
if redis.call('HLEN', KEYS[4]) == 0 then bytes = 0 end
local bytes_max = tonumber(ARGV[4])
local id = tonumber(redis.call('HGET', KEYS[1], 'next') or '0')
local answers = {}
for i = 5, #ARGV, 5 do
    local digest, own, kind, message = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2], ARGV[i + 4]
    local held = tonumber(redis.call('HGET', KEYS[5], digest) or '0')
    local said = 'n'
    if held > own then said = kind == 's' and 'k' or 'd' end
    if said ~= 'k' and kind ~= 'p' then
        if room < 1 or bytes + #message > bytes_max then break end
        room, bytes, id = room - 1, bytes + #message, id + 1
        local name = string.format('%016.0f', id)
        redis.call('HSET', KEYS[4], name, message)
        redis.call('ZADD', KEYS[3], string.format('%.0f', now + tonumber(ARGV[i + 3])), name)
        if said == 'd' then redis.call('SADD', KEYS[7], name) end
    end
    -- A foreign digest is taken over, one of its own is one more.
    if said == 'n' then redis.call('HINCRBY', KEYS[5], digest, 1) end
    redis.call('ZADD', KEYS[6], clock[1], digest)
    answers[#answers + 1] = said
end
local told = table.concat(answers)
redis.call('HSET', KEYS[1], 'next', string.format('%.0f', id), 'bytes', string.format('%.0f', bytes))
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2] .. ' ' .. told)
return told
