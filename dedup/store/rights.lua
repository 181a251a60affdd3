-- Ask which of the commands that the other scripts use this user may not run on the state's key.
--
-- KEYS[1]  hash, the state of one guarded queue, or the records of the registry
-- KEYS[2]  the registry only: sorted set, see register.lua
--
-- Reply    the names of those commands; none where Redis cannot tell (before 7.0)
--
-- Changes nothing.

local refused = {}
if not redis.acl_check_cmd then return refused end
local commands = {
    {'HGET', KEYS[1], 'token'},
    {'HGETALL', KEYS[1]},
    {'HSET', KEYS[1], 'token', '1'},
    {'HDEL', KEYS[1], 'token'},
    {'DEL', KEYS[1]},
    {'INFO', 'server'},
}
if KEYS[2] then
    commands = {
        {'HGET', KEYS[1], 'id'},
        {'HMGET', KEYS[1], 'id'},
        {'HSET', KEYS[1], 'id', '1'},
        {'HDEL', KEYS[1], 'id'},
        {'ZADD', KEYS[2], '1', 'id'},
        {'ZCARD', KEYS[2]},
        {'ZSCORE', KEYS[2], 'id'},
        {'ZRANGE', KEYS[2], '0', '0'},
        {'ZREM', KEYS[2], 'id'},
        {'ZREVRANGE', KEYS[2], '0', '0'},
        {'TIME'},
        {'INFO', 'server'},
    }
end
for _, command in ipairs(commands) do
    if not redis.acl_check_cmd(unpack(command)) then table.insert(refused, command[1]) end
end
return refused
